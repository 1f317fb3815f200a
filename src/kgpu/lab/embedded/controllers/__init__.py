"""The controllers of kube-controller-manager that a lab needs, over the ``KubeApi`` port; ``run`` starts them all."""
