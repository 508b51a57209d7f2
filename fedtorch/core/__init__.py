"""Objects that client and server keep and exchange."""
