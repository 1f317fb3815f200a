"""The custom resources: what their manifests may say, the schemas that the API server checks, and reading them."""
