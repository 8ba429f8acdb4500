"""Shipped test suites and strategies for those who write policies, copiers and specs."""
