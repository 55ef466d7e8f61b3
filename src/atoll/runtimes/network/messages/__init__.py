"""What travels between server and parties, and how it is checked."""
