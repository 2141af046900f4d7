{{/* Text of a scalar: numbers in full, without an exponent. */}}
{{- define "gateway.text" -}}
{{- if not (kindIs "invalid" .) }}{{ kindIs "string" . | ternary . (toJson .) }}{{ end -}}
{{- end -}}

{{/* One map of strings from several: a later value replaces an earlier one, null removes it. */}}
{{- define "gateway.strings" -}}
{{- $all := dict -}}
{{- range . -}}
  {{- range $key, $value := . -}}
    {{- if kindIs "invalid" $value }}{{ $_ := unset $all $key }}{{ else }}{{ $_ := set $all $key (include "gateway.text" $value) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- with $all }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* The same of the chart's own labels or annotations and those of values, which must not change the
     ones in "fixed": (dict "own" $map "fixed" $map "given" (list (list "commonLabels" $map))). */}}
{{- define "gateway.protected" -}}
{{- $maps := list .own -}}
{{- range $given := .given -}}
  {{- $map := last $given | default dict -}}
  {{- range $key, $value := $.fixed -}}
    {{- if and (hasKey $map $key) (ne $value (include "gateway.text" (get $map $key))) -}}
      {{- fail (printf "%s must not set %s: the chart needs its own value, %s" (first $given) $key $value) -}}
    {{- end -}}
  {{- end -}}
  {{- $maps = append $maps $map -}}
{{- end -}}
{{- include "gateway.strings" $maps -}}
{{- end -}}

{{/* Of entries with equal keys the last, as JSON: (list "name" $entries $more). */}}
{{- define "gateway.lastOfEach" -}}
{{- $kept := list -}}
{{- $seen := dict -}}
{{- range reverse (concat (index . 1) (index . 2 | default list)) -}}
  {{- $id := get . (first $) | trimSuffix "/" -}}
  {{- if not (hasKey $seen $id) }}{{ $kept = prepend $kept . }}{{ end -}}
  {{- $_ := set $seen $id true -}}
{{- end -}}
{{- toJson $kept -}}
{{- end -}}

{{/* A Deployment or StatefulSet with the extraEnv, extraVolumes and extraVolumeMounts of its values.
     Each replaces the chart's entry of that name, or of that path:
     (list "gateway.apiDeployment" $ .Values.api). */}}
{{- define "gateway.extended" -}}
{{- $values := last . -}}
{{- $object := include (first .) (index . 1) | fromYaml -}}
{{- with $object.Error }}{{ fail . }}{{ end -}}
{{- $pod := $object.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $env := include "gateway.lastOfEach" (list "name" $container.env $values.extraEnv) | fromJsonArray -}}
{{- range $env }}{{ if hasKey . "value" }}{{ $_ := set . "value" (include "gateway.text" .value) }}{{ end }}{{ end -}}
{{- $_ := set $container "env" $env -}}
{{- $_ := set $container "volumeMounts" (include "gateway.lastOfEach" (list "mountPath" $container.volumeMounts $values.extraVolumeMounts) | fromJsonArray) -}}
{{- $_ := set $pod "volumes" (include "gateway.lastOfEach" (list "name" $pod.volumes $values.extraVolumes) | fromJsonArray) -}}
{{- toYaml $object -}}
{{- end -}}
