"""A party's side of a federation: its policy, its audit log, its answers."""
