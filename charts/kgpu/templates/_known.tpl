{{- /* Fails for the first name in .values that .known does not have; .path is where .values is. Nothing known: anything. */ -}}
{{- define "kgpu.known" -}}
{{- $known := .known -}}
{{- $path := .path -}}
{{- if $known -}}
{{- range $name, $value := .values -}}
{{- if not (hasKey $known $name) -}}
{{- $meant := include "kgpu.nearest" (dict "word" $name "words" (keys $known | sortAlpha)) -}}
{{- $hint := empty $meant | ternary "" (printf "; did you mean %s%s?" $path $meant) -}}
{{- fail (printf "\n\nthe chart has no value %s%s%s\n  expected: one of %s\n  to do: correct the name, or take it out of --set and the values files\n" $path $name $hint (keys $known | sortAlpha | join ", ")) -}}
{{- end -}}
{{- $inner := get $known $name -}}
{{- if kindIs "map" $value -}}
{{- include "kgpu.known" (dict "known" $inner "values" $value "path" (printf "%s%s." $path $name)) -}}
{{- else if kindIs "slice" $value -}}
{{- range $number, $item := $value -}}
{{- if kindIs "map" $item -}}
{{- include "kgpu.known" (dict "known" $inner "values" $item "path" (printf "%s%s[%d]." $path $name $number)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The one of .words that is nearest to .word, "" when none is near: at most a third of it differs. */ -}}
{{- define "kgpu.nearest" -}}
{{- $best := "" -}}
{{- $least := add1 (div (add (len .word) 2) 3) | int -}}
{{- $word := .word | lower | replace "-" "" | replace "_" "" -}}
{{- range $other := .words -}}
{{- $distance := include "kgpu.distance" (list $word ($other | lower | replace "-" "" | replace "_" "")) | int -}}
{{- if lt $distance $least -}}
{{- $least = $distance -}}
{{- $best = $other -}}
{{- end -}}
{{- end -}}
{{- $best -}}
{{- end }}

{{- /* How many characters have to be put in, taken out or changed to make one word of (list one other) the other. */ -}}
{{- define "kgpu.distance" -}}
{{- $one := index . 0 -}}
{{- $other := index . 1 -}}
{{- $before := untilStep 0 (len $other | add1 | int) 1 -}}
{{- range $row, $letter := splitList "" $one -}}
{{- $now := list (add1 $row | int) -}}
{{- range $column, $against := splitList "" $other -}}
{{- $changed := add (index $before $column) (eq $letter $against | ternary 0 1) | int -}}
{{- $taken := index $before (add1 $column | int) | add1 | int -}}
{{- $put := index $now $column | add1 | int -}}
{{- $now = append $now (min $changed $taken $put | int) -}}
{{- end -}}
{{- $before = $now -}}
{{- end -}}
{{- last $before -}}
{{- end }}
