"""Clients that cheat on purpose, to see what a rule of the server's does: the section `attack` of a config."""
