module kgpu.dev/lab/pki

go 1.24
