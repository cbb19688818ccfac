"""Write and read a training state as files, independently of the layout."""
