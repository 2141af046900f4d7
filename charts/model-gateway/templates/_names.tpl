{{/* Prefix of all names; short enough for the longest suffix. */}}
{{- define "gateway.name" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $chart .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $chart | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Prefix of the names of objects that belong to the cluster. */}}
{{- define "gateway.clusterName" -}}
{{ .Release.Namespace }}-{{ include "gateway.name" . }}
{{- end -}}

{{/* Labels that never change: (dict "root" $ "component" "api"). */}}
{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Labels of an object: (dict "root" $ "component" "api"), "labels" are further ones. */}}
{{- define "gateway.labels" -}}
{{- $selector := include "gateway.selector" . | fromYaml -}}
{{- $own := dict
      "app.kubernetes.io/part-of" "model-gateway"
      "app.kubernetes.io/version" .root.Chart.AppVersion
      "app.kubernetes.io/managed-by" .root.Release.Service
      "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- $labels := include "gateway.protected" (dict "own" (merge $own $selector) "fixed" $selector
      "given" (list (list "commonLabels" .root.Values.commonLabels))) | fromYaml -}}
{{- include "gateway.strings" (list $labels .labels) -}}
{{- end -}}

{{/* Name, namespace, labels and "annotations": as for labels, "suffix" where another name. */}}
{{- define "gateway.metadata" -}}
name: {{ include "gateway.name" .root }}-{{ default .component .suffix }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "gateway.labels" . | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- include "gateway.strings" (list .) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gateway.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gateway.apiUrl" -}}
{{- $port := int .Values.api.service.port -}}
{{- default (printf "http://%s-api.%s.svc%s" (include "gateway.name" .) .Release.Namespace (eq $port 80 | ternary "" (printf ":%d" $port))) .Values.api.baseUrl -}}
{{- end -}}

{{- define "gateway.mediaUrl" -}}
{{- $port := int .Values.media.service.port -}}
{{- default (printf "http://%s-media.%s.svc%s" (include "gateway.name" .) .Release.Namespace (eq $port 80 | ternary "" (printf ":%d" $port))) .Values.media.url -}}
{{- end -}}

{{- define "gateway.mcpUrl" -}}
{{- $port := int .Values.mcp.service.port -}}
{{- default (printf "http://%s-mcp.%s.svc%s" (include "gateway.name" .) .Release.Namespace (eq $port 80 | ternary "" (printf ":%d" $port))) .Values.mcp.url -}}
{{- end -}}

{{/* An operator replica's inner port, {ordinal} being its number. */}}
{{- define "gateway.operatorUrl" -}}
{{- $name := printf "%s-operator" (include "gateway.name" .) -}}
http://{{ $name }}-{ordinal}.{{ $name }}.{{ .Release.Namespace }}.svc:8082
{{- end -}}

{{- define "gateway.apiKeysSecret" -}}
{{ default (printf "%s-api-keys" (include "gateway.name" .)) .Values.secrets.apiKeys }}
{{- end -}}

{{- define "gateway.mediaKeySecret" -}}
{{ default (printf "%s-media-key" (include "gateway.name" .)) .Values.secrets.mediaKey }}
{{- end -}}

{{- define "gateway.redisSecret" -}}
{{ default (printf "%s-redis" (include "gateway.name" .)) .Values.secrets.redis }}
{{- end -}}

{{- define "gateway.claim" -}}
{{ default (printf "%s-store" (include "gateway.name" .)) .Values.store.directory.existingClaim }}
{{- end -}}

{{/* Whether the chart makes an account and a key for `helm test` alone. */}}
{{- define "gateway.makesTestKey" -}}
{{- with .Values.tests }}{{ and .enabled .createKey (not .keySecret) (not $.Values.simulator.enabled) | ternary "yes" "" }}{{ end -}}
{{- end -}}

{{/* Secret with the key of `helm test`: the one named, the trial's, the chart's, or that of the
     first key that firstObjects has for calls. Empty: there is none. */}}
{{- define "gateway.testKeySecret" -}}
{{- $secret := .Values.tests.keySecret -}}
{{- if not $secret -}}
  {{- if .Values.simulator.enabled -}}
    {{- $secret = printf "%s-trial-key" (include "gateway.name" .) -}}
  {{- else if .Values.tests.createKey -}}
    {{- $secret = printf "%s-test-key" (include "gateway.name" .) -}}
  {{- else -}}
    {{- range reverse .Values.firstObjects.keys }}{{ if not .management }}{{ $secret = .secretName }}{{ end }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $secret -}}
{{- end -}}

{{/* Names of Secrets, as JSON, that a process may read or write:
     "credentials" and callback secrets that the operator reads, "keys" that it writes declared keys
     into, "judges" that the API reads. Those that values name, those that firstObjects refer to, and
     those of the trial: (dict "root" $ "kind" "keys"). */}}
{{- define "gateway.secretNames" -}}
{{- $values := .root.Values -}}
{{- $trial := $values.simulator.enabled | ternary (list (include "gateway.name" .root)) list -}}
{{- $credentials := $values.operator.secretNames -}}
{{- $keys := $values.operator.keySecretNames -}}
{{- $judges := $values.moderation.providerSecrets -}}
{{- range $values.firstObjects.keys }}{{ $keys = append $keys .secretName }}{{ end -}}
{{- if include "gateway.makesTestKey" .root }}{{ $keys = append $keys (include "gateway.testKeySecret" .root) }}{{ end -}}
{{- range $values.firstObjects.objects -}}
  {{- $spec := default dict .spec -}}
  {{- range list $spec.credentialsSecretRef $spec.webhookSecretRef $spec.previousWebhookSecretRef -}}
    {{- with . }}{{ $credentials = append $credentials .name }}{{ end -}}
  {{- end -}}
  {{- if and (eq .kind "GatewayProvider") (has (toString $spec.type) (list "openai" "google")) -}}
    {{- with $spec.credentialsSecretRef }}{{ $judges = append $judges .name }}{{ end -}}
  {{- end -}}
  {{- if eq .kind "GatewayKey" -}}
    {{- with $spec.secretName }}{{ $keys = append $keys . }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- range $trial -}}
  {{- $credentials = concat $credentials (list (printf "%s-simulator" .) (printf "%s-trial-webhook" .)) -}}
  {{- $keys = append $keys (printf "%s-trial-key" .) -}}
  {{- $judges = append $judges (printf "%s-simulator" .) -}}
{{- end -}}
{{- get (dict "credentials" $credentials "keys" $keys "judges" $judges) .kind | uniq | toJson -}}
{{- end -}}
