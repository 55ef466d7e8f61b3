"""Parts as somebody outside of Atoll writes them: each file imports public names only."""
