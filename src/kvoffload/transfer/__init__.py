"""Transfers: pure copy plans and the ledger of jobs in flight."""
