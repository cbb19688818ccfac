"""Scripts that run in the environments of libraries that cannot be installed beside oppa. They import nothing of oppa."""
