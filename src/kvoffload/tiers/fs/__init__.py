"""A directory as a tier: local or shared by many processes and hosts. The entrance is `tier.FsTier`."""
