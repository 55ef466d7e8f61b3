"""Reports: what a run looked like, as figures, a page and sentences. Everything here is a function of the facts."""
