"""Reversible networks, ciphers and how they mix."""
