{{- /* Values of node feature discovery's subchart of which nothing comes, by path, and what to set in place of them. */ -}}
{{- define "kgpu.idleDiscovery" -}}
{{- $gone := "kgpu has no pods of node feature discovery" -}}
{{- $instead := dict
  "worker.tolerations" "set daemonsets.tolerations"
  "worker.priorityClassName" "set daemonsets.priorityClassName"
  "worker.annotations" "set daemonsets.annotations"
  "worker.nodeSelector" "kgpu-node-features is on every Linux node; agent.nodeSelector says where agents are"
  "priorityClassName" "set daemonsets.priorityClassName and operator.priorityClassName"
  "master.tolerations" "set operator.tolerations"
  "master.nodeSelector" "set operator.nodeSelector"
  "master.replicaCount" "set operator.replicas"
  "master.resources" "set operator.resources"
  "topologyUpdater" "kgpu makes no NodeResourceTopologies; install node feature discovery's own chart beside it with nothing but its topologyUpdater"
-}}
{{- $rules := list "master.config" "master.instance" "master.enableTaints" "master.denyLabelNs" "master.extraLabelNs" "featureGates" -}}
{{- $works := list -}}
{{- if .Values.nfd.enabled }}{{ $works = append $works "worker.config" }}{{ end -}}
{{- if .Values.nfd.nodefeaturerules }}{{ $works = concat $works $rules }}{{ end -}}
{{- $found := list -}}
{{- range $part, $inner := index .Values "node-feature-discovery" | default dict -}}
{{- $paths := list $part -}}
{{- if and (kindIs "map" $inner) (ne $part "featureGates") (not (hasKey $instead $part)) -}}
{{- $paths = list -}}
{{- range $key, $_ := $inner }}{{ $paths = append $paths (printf "%s.%s" $part $key) }}{{ end -}}
{{- end -}}
{{- range $path := $paths -}}
{{- if not (has $path $works) -}}
{{- $why := get $instead $path | default (has $path $rules | ternary "set nfd.nodefeaturerules=true" $gone) -}}
{{- if eq $path "worker.config" }}{{ $why = "set nfd.enabled=true" }}{{ end -}}
{{- $found = append $found (dict "path" (printf "node-feature-discovery.%s" $path) "instead" $why) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}
