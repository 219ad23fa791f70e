#compdef verbs
# zsh completion for verbs
_verbs() {
	local -a found
	found=("${(@f)$(verbs words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	if [[ -n $found[1] ]]; then
		compadd -a found
	else
		_files
	fi
}
if [[ $funcstack[1] == _verbs ]]; then
	_verbs "$@"
else
	compdef _verbs verbs
fi
