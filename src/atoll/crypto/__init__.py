"""Cryptography: keys, masks, secret sharing and secure aggregation. It imports nothing of the rest of the package."""
