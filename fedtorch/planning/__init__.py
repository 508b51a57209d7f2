"""What a run will do and cost, before it: the dry run, and the time and memory of a round on other machines."""
