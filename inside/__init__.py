"""Inside a trained network: what each head attends to and by what, and what happens when that is changed."""
