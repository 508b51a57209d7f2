"""Who is in a job, where they are, who is lost, and what they leave each other in the store."""
