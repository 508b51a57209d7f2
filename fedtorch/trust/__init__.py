"""Who the parties of a federation are: keys, and the list of members that all of them have."""
