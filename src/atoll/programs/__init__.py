"""Programs: who talks in which order. A program states effects and performs none."""
