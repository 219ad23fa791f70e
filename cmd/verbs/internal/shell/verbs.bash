# bash completion for verbs
_verbs() {
	local IFS=$'\n'
	COMPREPLY=($(verbs words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _verbs verbs
