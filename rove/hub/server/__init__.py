"""A hub: what it keeps, who may do what there, what it answers, its pages, and how it is exported and mirrored."""
