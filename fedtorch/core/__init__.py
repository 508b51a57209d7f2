"""What client and server keep and exchange."""
