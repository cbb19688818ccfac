"""Hold scripts that run in the environments of libraries that cannot be installed next to oppa. They import nothing of oppa."""
