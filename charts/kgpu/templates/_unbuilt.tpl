{{- /* The values at the dotted .path below .values, in a list of one; an empty list where there is none. */ -}}
{{- define "kgpu.at" -}}
{{- $place := .values -}}
{{- range splitList "." .path -}}
{{- if kindIs "map" $place -}}
{{- $place = get $place . -}}
{{- else -}}
{{- $place = "" -}}
{{- end -}}
{{- end -}}
{{- list $place | toJson -}}
{{- end }}

{{- /* The values that ask for what kgpu can't do, as a JSON list of their rows in values.unbuilt.json. */ -}}
{{- define "kgpu.unbuilt" -}}
{{- $values := .Values -}}
{{- $found := list -}}
{{- range $field := .Files.Get "values.unbuilt.json" | fromJsonArray -}}
{{- $value := include "kgpu.at" (dict "values" $values "path" $field.path) | fromJsonArray | first -}}
{{- $number := and (kindIs "float64" $value) (not (has nil $field.quiet)) -}}
{{- $asked := and (or $value $number) (not (has $value $field.quiet)) -}}
{{- range $switch := $field.switches -}}
{{- $told := include "kgpu.at" (dict "values" $values "path" $switch.path) | fromJsonArray | first -}}
{{- $is := kindIs "bool" $told | ternary $told $switch.on -}}
{{- $asked = and $asked $is -}}
{{- end -}}
{{- if $asked -}}
{{- $found = append $found $field -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}
