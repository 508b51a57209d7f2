"""A site's word on what may leave it: its policy, what a run asks for, and the gate that measures what leaves."""
