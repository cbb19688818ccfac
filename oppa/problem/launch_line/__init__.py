"""Read the syntax of a user's launch line: environment, wrappers, launcher, program and arguments, also through a shell script."""
