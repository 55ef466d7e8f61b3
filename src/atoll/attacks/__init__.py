"""Attacks: what a curious server or party can work out from what it sees, to measure what protection is worth."""
