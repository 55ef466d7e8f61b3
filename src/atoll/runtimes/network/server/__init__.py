"""The server's side of a federation between real parties."""
