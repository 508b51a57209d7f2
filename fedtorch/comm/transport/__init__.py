"""How bytes move between ranks: groups, shared memory, sockets, devices, and digests of what moved."""
