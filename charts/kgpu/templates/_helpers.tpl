{{- /* Labels of every object; the chart's version is never in a pod's, where it would roll pods for nothing. */ -}}
{{- define "kgpu.labels" -}}
app.kubernetes.io/name: kgpu
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kgpu.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "kgpu.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What any kgpu process in the cluster may have: nothing. */ -}}
{{- define "kgpu.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "kgpu.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "kgpu.logArgs" -}}
{{- $level := .Values.operator.logging.level | toString | lower -}}
{{- if .Values.operator.logging.develMode }}{{ $level = "debug" }}{{ end -}}
- --log-level={{ dict "warn" "warning" "fatal" "error" "panic" "error" | dig $level $level }}
- --log-format={{ .Values.operator.logging.format }}
{{- end }}

{{- /* A hook's Job: context (dict "root" $ "name" .. "account" .. "hook" .. "weight" .. "args" list "deadline" ..). */ -}}
{{- define "kgpu.hookJob" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "kgpu.labels" .root | nindent 4 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-weight: {{ .weight | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 2
  activeDeadlineSeconds: {{ .deadline }}
  template:
    metadata:
      labels:
        app: {{ .name }}
        app.kubernetes.io/name: kgpu
        app.kubernetes.io/component: gpu-operator
    spec:
      serviceAccountName: {{ .account }}
      restartPolicy: Never
      {{- include "kgpu.imagePullSecrets" .root | nindent 6 }}
      securityContext:
        {{- include "kgpu.podSecurity" .root | nindent 8 }}
      {{- with .root.Values.operator.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      tolerations:
        # Where every node is cordoned, also by kgpu itself, uninstalling has to work all the same.
        - key: node.kubernetes.io/unschedulable
          operator: Exists
          effect: NoSchedule
        {{- with .root.Values.operator.tolerations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      containers:
        - name: kgpu
          image: {{ include "kgpu.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args:
            {{- toYaml .args | nindent 12 }}
          securityContext:
            {{- include "kgpu.containerSecurity" .root | nindent 12 }}
          resources:
            requests:
              cpu: 50m
              memory: 64Mi
            limits:
              memory: 256Mi
{{- end }}

{{- /* The map without what is empty ("", [], {}, null) at any depth, as JSON; false and 0 stay. What the CRDs have as
text is made text where people leave out quotes: versions, values of environment variables, a number of pods. */ -}}
{{- define "kgpu.filled" -}}
{{- $found := dict -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- $value = include "kgpu.filled" $value | fromJson -}}
{{- else if eq $key "env" -}}
{{- $value = include "kgpu.env" $value | fromJsonArray -}}
{{- else if and (has $key (list "version" "value")) (kindIs "invalid" $value | not) -}}
{{- $value = toString $value -}}
{{- end -}}
{{- if or (kindIs "bool" $value) (kindIs "float64" $value) (kindIs "int64" $value) (kindIs "int" $value) $value -}}
{{- $_ := set $found $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- define "kgpu.env" -}}
{{- $found := list -}}
{{- range . -}}
{{- $found = append $found (merge (dict "value" (kindIs "invalid" .value | ternary "" (toString .value))) .) -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{- /* driver.upgradePolicy as the CRDs have it: gpuPodDeletion is their podDeletion. */ -}}
{{- define "kgpu.upgradePolicy" -}}
{{- $policy := omit . "gpuPodDeletion" -}}
{{- with .gpuPodDeletion }}{{ $_ := set $policy "podDeletion" . }}{{ end -}}
{{- toJson $policy -}}
{{- end }}

{{- /* Not empty on OpenShift, where nothing runs without rights of a kind that no other cluster has. */ -}}
{{- define "kgpu.openshift" -}}
{{- if or .Values.platform.openshift (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}true{{ end -}}
{{- end }}

{{- /* The accounts of all that run as agents, in both layouts. */ -}}
{{- define "kgpu.agentAccounts" -}}
{{- join " " (.Files.Get "agents.json" | fromJson).accounts -}}
{{- end }}

{{- /* What of node feature discovery's subchart says how rules of node features are carried out. As there, what stands
beside master.config goes before what is in it. */ -}}
{{- define "kgpu.featureRules" -}}
{{- $discovery := index .Values "node-feature-discovery" | default dict }}
{{- $master := get $discovery "master" | default dict }}
{{- $found := pick (get $master "config" | default dict) "denyLabelNs" "extraLabelNs" "labelWhiteList" "enableTaints" "restrictions" }}
{{- range $key := list "denyLabelNs" "extraLabelNs" "enableTaints" "instance" }}
{{- with get $master $key }}{{ $_ := set $found $key . }}{{ end }}
{{- end }}
{{- with pick (get $discovery "featureGates" | default dict) "NodeFeatureGroupAPI" }}{{ $_ := set $found "featureGates" . }}{{ end }}
{{- toJson $found }}
{{- end }}

{{- /* The config of node feature discovery's worker, which agents follow. */ -}}
{{- define "kgpu.featuresConfig" -}}
{{- $discovery := index .Values "node-feature-discovery" | default dict }}
{{- get (get $discovery "worker" | default dict) "config" | default dict | toJson }}
{{- end }}

{{- /* What a preview of an operation reads. */ -}}
{{- define "kgpu.operationLooks" -}}
- apiGroups: [""]
  resources: [nodes, pods]
  verbs: [get, list, watch]
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [get, list]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list]
{{- end }}

{{- /* What the DRA driver asks of the API server, beside its Node. */ -}}
{{- define "kgpu.claims" -}}
- apiGroups: [resource.k8s.io]
  resources: [resourceslices]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [get]
{{- end }}
