"""Tables of recipes: files with our numbers beside the paper's, and how far each recipe has been run."""
