"""ValidatingAdmissionPolicies: matched, evaluated and type checked as the real server does it."""
