"""What `powerspherical info` shows: the versions, the machine, and the errors of our functions on it."""
