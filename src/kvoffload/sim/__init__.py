"""The simulator: the production manager, ledger, staging and tiers under virtual time, with seeded faults."""
