"""Node feature rules: which nodes match, what they get, and why. Pure. Read plan.py first."""
