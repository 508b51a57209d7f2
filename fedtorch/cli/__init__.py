"""One command, `fedtorch`, for the command lines of the other rooms and of `launchers`."""
