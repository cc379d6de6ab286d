"""Many runs as one table, and everything that is made of it."""
