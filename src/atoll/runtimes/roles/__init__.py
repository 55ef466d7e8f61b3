"""Programs with roles at work: a role's side, the hub's side, and all of them on this machine."""
