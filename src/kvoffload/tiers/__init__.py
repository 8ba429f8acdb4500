"""Secondary tiers: places below host memory. They do I/O on threads of their own and never block the scheduler."""
