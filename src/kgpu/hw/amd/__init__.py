"""AMD GPUs, through the files of the driver ``amdgpu`` and its KFD."""
