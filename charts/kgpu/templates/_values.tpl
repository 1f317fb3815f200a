{{- /* Fails with three parts: context (dict "what" .. "expected" .. "todo" ..). */ -}}
{{- define "kgpu.refuse" -}}
{{- fail (printf "\n\n%s.\n  expected: %s\n  to do: %s\n" .what .expected .todo) -}}
{{- end }}

{{- /* Fails unless .value, as text, matches .pattern; .at is its path. Empty is for the API's default, unless .needed. */ -}}
{{- define "kgpu.matches" -}}
{{- $text := kindIs "invalid" .value | ternary "" (toString .value) -}}
{{- if and (or $text .needed) (not (regexMatch (printf "^(%s)$" .pattern) $text)) -}}
{{- include "kgpu.refuse" (dict "what" (printf "%s is %q" .at (trunc 80 $text)) "expected" .expected "todo" (printf "correct %s" .at)) -}}
{{- end -}}
{{- end }}

{{- /* Checks of one section of values: context (dict "at" path "section" map). */ -}}
{{- define "kgpu.section" -}}
{{- $at := .at -}}
{{- range $kind := list "limits" "requests" -}}
{{- range $name, $amount := get ($.section.resources | default dict) $kind | default dict -}}
{{- include "kgpu.matches" (dict "at" (printf "%s.resources.%s.%s" $at $kind $name) "value" $amount "needed" true
  "pattern" "[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
  "expected" "a quantity such as 500m, 0.5, 256Mi or 2Gi") -}}
{{- end -}}
{{- end -}}
{{- range $number, $one := .section.env -}}
{{- include "kgpu.matches" (dict "at" (printf "%s.env[%d].name" $at $number) "value" .name "needed" true
  "pattern" "[ -<>-~]+" "expected" "the name of an environment variable, without \"=\"; its value goes into value") -}}
{{- end -}}
{{- end }}
