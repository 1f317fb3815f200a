"""Turns NodeFeatures and NodeFeatureRules into labels, annotations, taints and extended resources of Nodes."""
