"""Certificates: lengths up to which leaked attention cannot change an answer."""
