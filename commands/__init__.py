"""What the command line can do, one file for each stage; `lengthlens.cli` puts it together."""
