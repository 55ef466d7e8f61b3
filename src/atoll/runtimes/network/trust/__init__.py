"""Who is who: keys, rosters, TLS."""
